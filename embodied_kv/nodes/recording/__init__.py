"""The topics that the recorder records, and the conversion of their messages."""
