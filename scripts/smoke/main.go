// Command smoke looks at a deployment from outside and says whether it works as it should.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/weirlimits/weir/scripts/internal/command"
)

const usage = `usage: go run ./scripts/smoke URL

looks at the deployment at URL, such as https://PROJECT.vercel.app or the http://127.0.0.1:3000 of scripts/dev, and prints a
line for each check: ok, FAILED with what was expected, or a note about what may be meant so. It makes no account and
borrows no code; it uses up about a dozen username checks and one sign-in attempt of the address it runs at.
Exit codes of the built program: 0 nothing failed, 1 something did, 2 wrong usage. go run turns every code but 0 into 1.
`

const (
	// totalDeadline is ample for some 30 requests to vercel dev, which compiles for each.
	totalDeadline = 5 * time.Minute
	// answerDeadline bounds one request: a cold start, or a compiler's.
	answerDeadline = 45 * time.Second
	// maxAnswerBytes bounds what is read of an answer; the largest that is asked for is openapi.json.
	maxAnswerBytes = 4 << 20
)

func main() {
	client := &http.Client{Timeout: answerDeadline}
	command.Main(totalDeadline, func(ctx context.Context) int {
		return run(ctx, os.Args[1:], client, os.Stdout, os.Stderr)
	})
}

// run is the command without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, client *http.Client, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("smoke", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return 0
	}
	var site *url.URL
	if err == nil {
		site, err = parse(flags.Args())
	}
	if err != nil {
		fmt.Fprintf(stderr, "smoke: %v\n%s", err, usage)
		return command.WrongUsage
	}
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	d := &deployment{ctx: ctx, site: site, client: &own}
	failed := 0
	for _, check := range checks {
		err := check.run(d)
		if remark, ok := errors.AsType[note](err); ok {
			fmt.Fprintf(stdout, "note    %s: %s\n", check.name, string(remark))
		} else if err != nil {
			failed++
			fmt.Fprintf(stdout, "FAILED  %s: %v\n", check.name, err)
		} else {
			fmt.Fprintf(stdout, "ok      %s\n", check.name)
		}
	}
	if failed > 0 {
		fmt.Fprintf(stderr, "smoke: %d of %d checks failed\n", failed, len(checks))
		return command.Failed
	}
	return 0
}

// parse reads the one argument, which is an origin.
func parse(args []string) (*url.URL, error) {
	if len(args) != 1 {
		return nil, fmt.Errorf("%d arguments: the URL is the only one", len(args))
	}
	u, err := url.Parse(args[0])
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q is no URL of a deployment: allowed are https://HOST and http://HOST:PORT, without a path", args[0])
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}

// deployment is what is looked at.
type deployment struct {
	ctx    context.Context
	site   *url.URL
	client *http.Client
}

// answer is a response with its body read.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// ask sends a request with fields given as names and values in turn.
func (d *deployment) ask(method, path string, body io.Reader, fields ...string) (answer, error) {
	return d.askAt(*d.site, method, path, body, fields...)
}

func (d *deployment) askAt(site url.URL, method, path string, body io.Reader, fields ...string) (answer, error) {
	r, err := http.NewRequestWithContext(d.ctx, method, site.String()+path, body)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i+1 < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	response, err := d.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	return answer{response.StatusCode, response.Header, text}, err
}
