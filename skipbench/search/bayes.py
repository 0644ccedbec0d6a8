"""One step of Bayesian optimisation over the unit cube, by the `bayes_opt` package."""

import contextlib
import io
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def suggest_point(
    points: Sequence[Sequence[float] | NDArray[np.float64]],
    values: Sequence[float],
    seed: Sequence[int],
    kappa: float = 2.576,
    draws: int = 10_000,
    starts: int = 10,
    restarts: int = 5,
) -> NDArray[np.float64]:
    """The point [d] of highest upper confidence bound, given the values (maximised) of at least one
    point. The bound is evaluated at random `draws`, from the best of which `starts` gradient
    searches begin; `restarts` are of the fit of the kernel.

    A Gaussian process with Matern kernel 5/2, noise 1e-2 and normalised values, as in the published
    code of Self-SD and SWIFT. It is fitted anew, so the result depends on the arguments alone.
    """
    from bayes_opt import acquisition
    from bayes_opt.target_space import TargetSpace
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    rng = np.random.RandomState(list(seed))
    bounds = {f"x{i:05d}": (0.0, 1.0) for i in range(len(points[0]))}
    space = TargetSpace(None, bounds, allow_duplicate_points=True)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints a line per point that comes again
        for point, value in zip(points, values, strict=True):
            space.register(np.asarray(point, float), value)
    fit = {"alpha": 1e-2, "normalize_y": True, "n_restarts_optimizer": restarts}
    process = GaussianProcessRegressor(Matern(nu=2.5), random_state=rng, **fit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit warns of kernel bounds at nearly every step
        bound = acquisition.UpperConfidenceBound(kappa=kappa)
        best = bound.suggest(process, space, n_random=draws, n_smart=starts, random_state=rng)
    return np.asarray(best, np.float64)
