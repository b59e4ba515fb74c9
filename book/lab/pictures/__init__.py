"""What the chapters' figures are drawn with, a module for each part of the book."""
