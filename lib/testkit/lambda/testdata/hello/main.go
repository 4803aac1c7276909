// Command hello is a function as Vercel builds them, small enough to test the harness with.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/vercel/go-bridge/go/bridge"
)

func main() {
	bridge.Start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/exit":
			fmt.Fprintln(os.Stderr, "leaving on request")
			os.Exit(3)
		case "/hang":
			select {}
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		wd, _ := os.Getwd()
		entries, _ := os.ReadDir(wd)
		w.Header().Add("Set-Cookie", "a=1")
		w.Header().Add("Set-Cookie", "b=2")
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s %s query=%s host=%s remote=%s agents=%q body=%x greeting=%s files=%d pid=%d",
			r.Method, r.URL.Path, r.URL.RawQuery, r.Host, r.RemoteAddr, r.Header.Values("X-Agent"), body,
			os.Getenv("GREETING"), len(entries), os.Getpid())
	}))
}
