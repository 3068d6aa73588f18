"""Small programs, one situation each, that tests record."""
