"""Every attention of a pass: records in memory and on disk, and the walk of a query."""
