"""What a conversion reports to people: the printed summary and the data set card."""
