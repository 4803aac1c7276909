package sqlstore

// Statements are the package's SQL texts with the number of arguments that each is given.
var Statements = map[string]int{
	plain.decide: 2, plain.read: 2, plain.both: 4, plain.giveBack: 2,
	rotating.decide: 2, rotating.read: 2, rotating.both: 4, rotating.giveBack: 2,
	operate: 6, sweep: 3, lastOf: 2,
}
