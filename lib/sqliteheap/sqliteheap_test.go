package sqliteheap

import (
	"errors"
	"sync"
	"testing"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

func account(t *testing.T, maxBytes int64) (*libc.TLS, *Account) {
	t.Helper()
	tls := libc.NewTLS()
	a, err := Open(tls, maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); tls.Close() })
	return tls, a
}

func TestAnAllocationBeyondTheBoundFailsAndChangesNothing(t *testing.T) {
	tls, a := account(t, 10_000)
	first := sqlite3.Xsqlite3_malloc(tls, 6_000)
	if first == 0 || a.Bytes() < 6_000 || a.Bytes() > 6_100 || a.Refused() {
		t.Fatalf("at %x: %d bytes, refused %t", first, a.Bytes(), a.Refused())
	}
	before := a.Bytes()
	if p := sqlite3.Xsqlite3_malloc(tls, 6_000); p != 0 {
		t.Fatal("12,000 of 10,000 bytes are given")
	}
	if p := sqlite3.Xsqlite3_realloc(tls, first, 11_000); p != 0 {
		t.Fatal("11,000 of 10,000 bytes are given")
	}
	if !a.Refused() || a.Bytes() != before || a.Peak() != before {
		t.Fatalf("%d bytes, were %d, at most %d; refused %t", a.Bytes(), before, a.Peak(), a.Refused())
	}
	first = sqlite3.Xsqlite3_realloc(tls, first, 9_000)
	if first == 0 || a.Bytes() < 9_000 {
		t.Fatalf("at %x: %d bytes", first, a.Bytes())
	}
	first = sqlite3.Xsqlite3_realloc(tls, first, 100)
	if first == 0 || a.Bytes() > 200 {
		t.Fatalf("at %x: %d bytes", first, a.Bytes())
	}
	sqlite3.Xsqlite3_free(tls, first)
	if a.Bytes() != 0 || a.Peak() < 9_000 || a.Peak() > 10_000 {
		t.Fatalf("%d bytes, at most %d", a.Bytes(), a.Peak())
	}
}

func TestABoundHoldsForItsOwnThreadAlone(t *testing.T) {
	tls, a := account(t, 1_000)
	other := libc.NewTLS()
	defer other.Close()
	p := sqlite3.Xsqlite3_malloc(other, 5_000)
	if p == 0 || a.Bytes() != 0 {
		t.Fatalf("at %x: %d bytes", p, a.Bytes())
	}
	sqlite3.Xsqlite3_free(other, p)
	a.Close()
	a.Close()
	p = sqlite3.Xsqlite3_malloc(tls, 5_000)
	if p == 0 || a.Bytes() != 0 {
		t.Fatalf("after Close, at %x: %d bytes", p, a.Bytes())
	}
	sqlite3.Xsqlite3_free(tls, p)
}

func TestManyAccountsAtOnceCountForThemselves(t *testing.T) {
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for range 200 {
				tls := libc.NewTLS()
				a, err := Open(tls, 4_000)
				if err != nil {
					t.Error(err)
					return
				}
				p, none := sqlite3.Xsqlite3_malloc(tls, 3_000), sqlite3.Xsqlite3_malloc(tls, 3_000)
				if p == 0 || none != 0 || a.Peak() < 3_000 {
					t.Errorf("at %x and %x: at most %d bytes", p, none, a.Peak())
				}
				sqlite3.Xsqlite3_free(tls, p)
				if a.Bytes() != 0 {
					t.Errorf("%d bytes are left", a.Bytes())
				}
				a.Close()
				tls.Close()
			}
		})
	}
	group.Wait()
}

func TestThereIsAnEndOfAccounts(t *testing.T) {
	tls := libc.NewTLS()
	defer tls.Close()
	for range maxAccounts {
		a, err := Open(tls, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
	}
	if a, err := Open(tls, 1); !errors.Is(err, ErrTooMany) {
		t.Fatalf("account %v, error %v", a, err)
	}
}

func TestABoundThatComesTooLateSaysSo(t *testing.T) {
	tls, _ := account(t, 1_000)
	sqlite3.Xsqlite3_free(tls, sqlite3.Xsqlite3_malloc(tls, 8)) // SQLite is in use now
	if err := install(); !errors.Is(err, ErrTooLate) {
		t.Fatalf("error %v, want ErrTooLate", err)
	}
	if err := Install(); err != nil {
		t.Fatalf("the first Install's answer is forgotten: %v", err)
	}
}
