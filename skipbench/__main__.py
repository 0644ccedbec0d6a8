"""`python -m skipbench`."""

from skipbench.cli import main

if __name__ == "__main__":
    main()
