"""`python -m skipbench`."""

from skipbench.cli.main import main

if __name__ == "__main__":
    main()
