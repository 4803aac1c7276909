package app

// WholeNumber is wholeNumber.
func WholeNumber(text string) (int64, error) { return wholeNumber(text) }
