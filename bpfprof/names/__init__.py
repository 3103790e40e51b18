"""While recording: addresses to names, so that a report needs neither the target nor its files."""
