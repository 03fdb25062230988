"""Reading published versions: names to manifests, row groups, members, references."""
