"""What runs tasks: in the pool process, or in a cell, with their starts and ends on record."""
