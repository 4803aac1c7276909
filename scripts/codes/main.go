// Command codes tops up the pool of invite codes, in the database that the environment names, as for the functions.
//
//	go run ./scripts/codes 100
//
// brings it to 100 codes that are not used. Codes are never taken away.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/weirlimits/weir/lib/app"
	"github.com/weirlimits/weir/lib/codes"
	"github.com/weirlimits/weir/lib/database"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "codes:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: go run ./scripts/codes N, with N from 0 to %d", codes.MaxPool)
	}
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("%q is not a number of codes: allowed are 0 to %d", args[0], codes.MaxPool)
	}
	settings, err := app.FromEnvironment()
	if err != nil {
		return err
	}
	db, err := database.Open(database.Config{URL: settings.DatabaseURL, AuthToken: settings.AuthToken, Deadline: settings.StoreDeadline})
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := codes.New(db.DB, codes.Config{}).Fill(ctx, n); err != nil {
		return err
	}
	fmt.Printf("the pool holds at least %d codes that are not used\n", n)
	return nil
}
