package sqlstore

// Statements are the package's SQL texts with the number of arguments that each is given.
var Statements = map[string]int{decide: 2, read: 2, giveBack: 7}
