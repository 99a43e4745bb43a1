"""How a report is drawn: blocks, figures in the browser and on paper."""
