package web

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"
)

// Where net/http serves a handler, its connection is bounded here, whatever timeouts the server
// has: the body has to be there after Config.BodyTime, and the answer to be read after
// Config.AnswerTime. Behind the platform's bridge, where the body is there already and the platform
// writes the answer, deadlines can't be set, and nothing is done.

// lingerTime bounds how long a client that is still sending is listened to after its answer.
const lingerTime = 2 * time.Second

// transfer is the body of a request, with what bounds its connection.
type transfer struct {
	io.ReadCloser
	controller *http.ResponseController
	http1      bool
	bodyTime   time.Duration
	answerTime time.Duration
	pending    bool  // a deadline is set, because some of the body is still to come
	bytes      int64 // that were read
	failed     error // of the last read
}

// transfer bounds the time of a request's body.
func (e *endpoint) transfer(rw http.ResponseWriter, r *http.Request) *transfer {
	t := &transfer{
		ReadCloser: r.Body,
		controller: http.NewResponseController(rw),
		http1:      r.ProtoMajor == 1,
		bodyTime:   e.web.cfg.BodyTime,
		answerTime: e.web.cfg.AnswerTime,
	}
	if t.ReadCloser == nil {
		t.ReadCloser = http.NoBody
	}
	if t.ReadCloser != http.NoBody {
		t.pending = t.controller.SetReadDeadline(time.Now().Add(t.bodyTime)) == nil
	}
	return t
}

// Read ends the deadline when the whole body is there: net/http goes on reading, to notice that the
// client goes away.
func (t *transfer) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	t.bytes += int64(n)
	switch {
	case err == io.EOF && t.pending:
		t.pending = false
		_ = t.controller.SetReadDeadline(time.Time{})
	case err != nil && err != io.EOF:
		t.failed = err
	}
	return n, err
}

// answering is called before an answer with so many bytes is written. While some of the body is
// still to come its deadline stays: net/http reads the rest before the answer goes out, so that the
// connection can be used again. A client that was too slow, or sends too much, gets its answer at
// once, and the connection ends.
func (t *transfer) answering(header http.Header, bytes int) {
	if !t.pending || !t.http1 {
		_ = t.controller.SetWriteDeadline(time.Now().Add(t.answerTime))
		return
	}
	_ = t.controller.SetWriteDeadline(time.Now().Add(t.bodyTime + t.answerTime)) // the rest of the body is read first
	if bytes > 0 {                                                               // or else net/http doesn't know it when the answer is flushed
		header.Set("Content-Length", strconv.Itoa(bytes))
	}
	if t.failed != nil || t.bytes > maxDrainBytes {
		header.Set("Connection", "close")
	}
}

// linger sends the answer out and drops what the client is still sending, until it has read the
// answer and closes, or its time is over: a connection that is closed with unread bytes may take
// the answer away from the client (RFC 9112, section 9.6). Where net/http has read the rest there
// is nothing left to read.
func (t *transfer) linger() {
	if !t.pending || !t.http1 || t.controller.Flush() != nil {
		return
	}
	if t.failed != nil && !errors.Is(t.failed, os.ErrDeadlineExceeded) {
		return // the client has gone, or doesn't send HTTP
	}
	_ = t.controller.SetReadDeadline(time.Now().Add(min(t.bodyTime, lingerTime)))
	_, _ = io.CopyN(io.Discard, t.ReadCloser, maxDrainBytes)
}
