// Package sqliteheap bounds the memory of a single SQLite connection. SQLite's own heap limit holds for the whole process, so
// a statement that runs into it would take memory from the application's database too.
package sqliteheap

import (
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// maxAccounts is how many connections can be bounded at once. Each is a core's work for its time, and a process with more
// cores than this serves somebody else.
const maxAccounts = 64

var (
	// ErrTooLate means that SQLite had been used before Install was called for the first time, and takes no more orders.
	ErrTooLate = errors.New("sqliteheap: SQLite is already in use in this process")

	// ErrTooMany means that as many connections are bounded as can be.
	ErrTooMany = errors.New("sqliteheap: too many bounded connections")
)

// Install puts the bounds between SQLite and its allocator. It works only before the process opens its first database, and
// must be called then; further calls return what the first one did. A connection that has no account pays one load of a
// variable for each allocation. It may be called by many goroutines.
var Install = sync.OnceValue(install)

func install() error {
	tls := libc.NewTLS()
	defer tls.Close()
	// SQLite copies the methods, so this memory is needed only here: the methods, and behind them a list of one argument.
	size := unsafe.Sizeof(methods)
	memory := libc.Xcalloc(tls, 1, libc.Tsize_t(size+2*unsafe.Sizeof(uintptr(0))))
	if memory == 0 {
		return errors.New("sqliteheap: out of memory")
	}
	defer libc.Xfree(tls, memory)
	argument := libc.VaList(memory+size, memory)

	if sqlite3.Xsqlite3_config(tls, sqlite3.SQLITE_CONFIG_GETMALLOC, argument) != sqlite3.SQLITE_OK {
		return ErrTooLate
	}
	methods = *at[sqlite3.Tsqlite3_mem_methods](memory)
	ours := methods
	ours.FxMalloc, ours.FxRealloc, ours.FxFree = pointer(malloc), pointer(realloc), pointer(free)
	*at[sqlite3.Tsqlite3_mem_methods](memory) = ours
	if sqlite3.Xsqlite3_config(tls, sqlite3.SQLITE_CONFIG_MALLOC, argument) != sqlite3.SQLITE_OK {
		return ErrTooLate
	}
	return nil
}

// Account counts what SQLite allocates on behalf of one thread of C. It belongs to the goroutine that uses that thread.
type Account struct {
	tls      *libc.TLS
	maxBytes int64
	bytes    int64
	peak     int64
	refused  bool
	slot     int
}

// Open bounds what is allocated for tls from now on: at maxBytes an allocation fails, and with it, as SQLITE_NOMEM, the
// statement. A connection that was opened with tls and is used with it alone has the bound to itself. Errors: ErrTooLate
// when the bounds aren't installed, ErrTooMany.
func Open(tls *libc.TLS, maxBytes int64) (*Account, error) {
	if err := Install(); err != nil {
		return nil, err
	}
	a := &Account{tls: tls, maxBytes: maxBytes}
	for slot := range accounts {
		if accounts[slot].CompareAndSwap(nil, a) {
			a.slot = slot
			opened.Add(1)
			return a, nil
		}
	}
	return nil, ErrTooMany
}

// Close ends the bound. The connection should have been closed by then. Closing twice is fine.
func (a *Account) Close() {
	if accounts[a.slot].CompareAndSwap(a, nil) {
		opened.Add(-1)
	}
}

// Bytes is what is allocated now.
func (a *Account) Bytes() int64 { return a.bytes }

// Peak is the most that was allocated at once.
func (a *Account) Peak() int64 { return a.peak }

// Refused says whether an allocation failed on the bound.
func (a *Account) Refused() bool { return a.refused }

// SQLite has one allocator for a process, so what it is told and whom it bounds are the process's too.
var (
	methods  sqlite3.Tsqlite3_mem_methods // SQLite's own
	opened   atomic.Int64                 // how many accounts there are
	accounts [maxAccounts]atomic.Pointer[Account]
)

// of finds the account of a thread of C, or nil.
func of(tls *libc.TLS) *Account {
	if opened.Load() == 0 {
		return nil
	}
	for slot := range accounts {
		if a := accounts[slot].Load(); a != nil && a.tls == tls {
			return a
		}
	}
	return nil
}

func malloc(tls *libc.TLS, n int32) uintptr {
	a := of(tls)
	if a.refuses(int64(n)) {
		return 0
	}
	p := function[func(*libc.TLS, int32) uintptr](methods.FxMalloc)(tls, n)
	if a != nil && p != 0 {
		a.count(sizeOf(tls, p))
	}
	return p
}

func realloc(tls *libc.TLS, p uintptr, n int32) uintptr {
	a := of(tls)
	var before int64
	if a != nil {
		before = sizeOf(tls, p)
	}
	if a.refuses(int64(n) - before) {
		return 0
	}
	moved := function[func(*libc.TLS, uintptr, int32) uintptr](methods.FxRealloc)(tls, p, n)
	if a != nil && moved != 0 {
		a.count(sizeOf(tls, moved) - before)
	}
	return moved
}

func free(tls *libc.TLS, p uintptr) {
	if a := of(tls); a != nil {
		a.count(-sizeOf(tls, p))
	}
	function[func(*libc.TLS, uintptr)](methods.FxFree)(tls, p)
}

// sizeOf is how large SQLite takes the memory at p to be.
func sizeOf(tls *libc.TLS, p uintptr) int64 {
	return int64(function[func(*libc.TLS, uintptr) int32](methods.FxSize)(tls, p))
}

// refuses says whether n bytes more would be too many. Without an account nothing is.
func (a *Account) refuses(n int64) bool {
	if a == nil || n <= 0 || a.bytes+n <= a.maxBytes {
		return false
	}
	a.refused = true
	return true
}

func (a *Account) count(n int64) {
	a.bytes += n
	a.peak = max(a.peak, a.bytes)
}

// at is the value at an address of C's memory, which the garbage collector doesn't move.
func at[T any](p uintptr) *T { return *(**T)(unsafe.Pointer(&p)) }

// pointer is a function of this package as C has it: a pointer to its code, which is not a closure.
func pointer[F any](f F) uintptr { return *(*uintptr)(unsafe.Pointer(&f)) }

// function is the reverse of pointer.
func function[F any](p uintptr) F { return *(*F)(unsafe.Pointer(&p)) }
