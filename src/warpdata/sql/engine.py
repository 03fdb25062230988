def matching_rows(table, condition):
    raise NotImplementedError
