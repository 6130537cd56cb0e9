"""A message on its way in: let in, told apart, kept alone, diverted, or sent to the pool."""
