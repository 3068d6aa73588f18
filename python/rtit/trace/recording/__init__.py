"""What a recording holds besides its packets: settings, buffers, processes, files of a pack."""
