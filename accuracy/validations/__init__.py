"""How far off simulations are: `kind: validate`, on recorded runs and on served results."""
