"""`python -m gpunode`."""

from gpunode.cli.main import main

if __name__ == "__main__":
    main()
