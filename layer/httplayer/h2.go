package httplayer

import (
	"context"
	"errors"
	"net/http"
	"strings"
)

// call sends a request by the connection, or by the one that comes after it.
func (s *single) call(ctx context.Context, req *http.Request) (*http.Response, error) {
	e := s.endpoint
	// A connection that is used up is replaced: by one that somebody else has
	// made, or else by a new one. More than that is no unlucky moment.
	for range 3 {
		c, err := s.get(ctx)
		if err != nil {
			return nil, err
		}
		placed := c.acquire()
		if c.age.over() {
			s.renew(c)
		}
		if !placed {
			if !c.spent() && c.cc.Err() == nil {
				return nil, e.full
			}
			s.retire(c)
			continue
		}
		out := e.outgoing(ctx, req)
		out.shared()
		rsp, err := c.cc.RoundTrip(out.Request)
		if err == nil {
			out.admit()
			rsp.Request, rsp.TLS = req, c.wire.tls
			return Completion(ctx, rsp, c), nil
		}
		c.End(err)
		fate := fateOf(err)
		if ctx.Err() != nil || fate == unknown || !out.withdraw() {
			out.fail()
			return nil, e.failed(out.blame(ctx, err))
		}
		if fate == unprocessed {
			return nil, e.refuse("not processed", &peerError{err})
		}
		s.retire(c)
	}
	return nil, e.refuse("connections end as soon as they begin", nil)
}

// shared takes out what asks to close the connection, which is everybody's: net/http
// would do it, though Connection means nothing in HTTP/2 (RFC 9113, section 8.2.2).
func (o outgoing) shared() {
	o.Close = false
	if namedInConnection(o.Header, "close") {
		o.Header = o.Header.Clone()
		delete(o.Header, "Connection")
	}
}

// fate is what an error says of the request.
type fate int

const (
	unknown     fate = iota // it may have been processed
	unsent                  // no stream was opened for it
	unprocessed             // it was sent, and the server says that it did nothing with it
)

// fateOf knows the errors of net/http by their text, since they are not
// exported. Were it to change, requests would fail that are refused now; a
// test would tell.
func fateOf(err error) fate {
	if reset, ok := errors.AsType[streamError](err); ok {
		if reset.Code == h2RefusedStream {
			return unprocessed
		}
		return unknown
	}
	switch text := err.Error(); {
	case text == "http2: client conn not usable", text == "http2: client conn could not be established":
		return unsent
	case text == "http2: Transport received Server's graceful shutdown GOAWAY",
		// Of stream 1, above the last one of a GOAWAY that says what was wrong.
		strings.HasPrefix(text, "http2: Transport received GOAWAY from server ErrCode:"):
		return unprocessed
	}
	return unknown
}
