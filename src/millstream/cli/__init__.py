"""The command line: `millstream shell`, `sql`, `serve`, `demo` and `bench`.

    arguments (main) ─► Runner ─► Worker: the one thread that talks to the database
         │                │
         │                ├─► Activity: spinner and progress bar on stderr
         │                └─► Printer: rows and statuses on stdout, errors on stderr
         └─► Shell ─► shortcuts, completer, confirm

Reads the database only through `millstream.database`; draws rows with `millstream.deliver.render`.
"""
