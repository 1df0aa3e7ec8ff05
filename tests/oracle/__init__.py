"""What Millstream answers, against plain models of what it should."""
