"""What the programs of ../programs are started, watched and judged with."""
