// Behind table.js: a link of a plot shows the rows of its bundle and method.
function follow() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  controls.reset();
  recall(wanted);
  if (wanted.has("filter")) document.getElementById("overview").scrollIntoView();
}

addEventListener("hashchange", follow);
follow();
