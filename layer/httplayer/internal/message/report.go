package message

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer"
)

// Report describes a request to a server and what its client got, after the response has ended.
type Report struct {
	// Request is the request as the client sent it, without the hop-by-hop fields. For a refused
	// request it contains what was read: the method, the target, the Host and the version.
	Request *http.Request

	// Response holds the status, the headers and the trailers that were sent. It is nil if no
	// response was sent by a layer: the request was refused, or was aborted before the response.
	// Its body is closed.
	Response *http.Response

	// Status is the response status. It is 499 if the client left before the response began. It is 500
	// after a panic and 502 after a reset of the endpoint, for which no response is sent.
	Status int

	// Err is the reason for which the request was refused, or for which the client did not get the
	// whole response. It is nil for a complete response and for a tunnel. See Facts for errors that
	// were answered.
	Err     error
	Refused bool // the server refused the request by itself, so that no layer has seen it

	Began time.Time // the headers of the request had arrived
	Head  time.Time // the headers of the response were known
	Ended time.Time

	Received int64 // bytes of the request body that were read
	Sent     int64 // bytes of the response body that were sent; -1 for a tunnel

	Facts layer.Facts // facts that layers have reported to the Record of the request
}

// Reported is a request's Report with the context in which layers report facts, in one allocation.
type Reported struct {
	reqctx.Wrapper

	report Report
	info   layer.PickInfo
	record layer.Record
}

// Value returns the request's PickInfo, with the Record of facts, to layers that ask for it, and the parent's values
// to all others.
func (r *Reported) Value(key any) any {
	if key == (reqctx.PickInfoKey{}) {
		return &r.info
	}
	return r.Context.Value(key)
}

// NewStream returns a new S, which should be a [Stream], for the request of a server with the configuration cfg. If
// cfg reports requests, it also returns the memory for the report of this one, which is part of the same allocation.
func NewStream[S any](cfg *ServerConfig) (*S, *Reported) {
	if cfg.Ended == nil {
		return new(S), nil
	}
	x := new(struct {
		stream   S
		reported Reported
	})
	return &x.stream, &x.reported
}

// report serves req as Serve does, and reports it to cfg.Ended.
func (cfg *ServerConfig) report(s Stream, req *http.Request, r *Reported) (err error) {
	r.Wrapper = reqctx.Wrapper{Context: req.Context()}
	r.info = layer.PickInfoFromContext(req.Context())
	r.info.Record = cmp.Or(r.info.Record, &r.record) // a Record of the server's context, or its own
	*req = *req.WithContext(r)                       // the caller owns it, so that no copy is needed
	x := &r.report
	// The status stays 500 only if the exchange panics before its response.
	*x = Report{Request: req, Began: time.Now(), Status: http.StatusInternalServerError}
	x.Sent, err = cfg.respond(s, req, x)
	x.Ended = time.Now()
	if x.Head.IsZero() { // there was no response
		x.Head = x.Ended
		if _, reset := errors.AsType[*ResetError](err); reset {
			x.Status = http.StatusBadGateway
		}
	}
	clientLeft := ClientLeft(req)
	if clientLeft && x.Response == nil {
		x.Status = StatusClientClosedRequest
	}
	switch {
	case x.Sent < 0: // a tunnel, whose end is no error
	case err != nil:
		x.Err = err
	case clientLeft:
		x.Err = reqctx.Cause(req.Context())
	}
	x.Received, x.Facts = s.Received(), r.info.Record.Facts()
	cfg.ended(x)
	return err
}

// begin records the response that is about to be sent. It does nothing if x is nil, because no report
// is needed.
func (x *Report) begin(rsp *http.Response) {
	if x == nil {
		return
	}
	x.Response, x.Status, x.Head = rsp, rsp.StatusCode, time.Now()
	if ClientLeft(x.Request) {
		x.Status = StatusClientClosedRequest
	}
}

// ended calls the configured function Ended, whose panic is logged.
func (cfg *ServerConfig) ended(x *Report) {
	if err := panics.Contain(func() { cfg.Ended(x) }); err != nil {
		cfg.Log.Error("panic while a request was reported", "error", err)
	}
}

// ClientLeft reports whether the client of the received request r has left.
func ClientLeft(r *http.Request) bool {
	return r.Context().Err() != nil && errors.Is(reqctx.Cause(r.Context()), context.Canceled)
}
