"""Tables in the shape of the papers', on recordings and cards of this project."""
