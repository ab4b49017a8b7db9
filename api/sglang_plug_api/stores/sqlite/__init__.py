"""The store ``sqlite``: a database for records and results, and a folder with the contents of files."""
