"""`card.html`: a data set on one page."""
