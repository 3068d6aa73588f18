"""What people look at, computed from columns."""
