package h2

import (
	"net/http"
	"strconv"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// headers handles a header block of a response, which can be that of a 1xx response or of the final
// one. The final one makes RoundTrip return. end reports END_STREAM. tooLarge reports that the block
// exceeds the size limit.
func (s *clientStream) headers(fields []field, end, tooLarge bool) error {
	if tooLarge {
		return malformed(s.id, "response headers too large")
	}
	status, length, reason := responseHead(fields)
	if reason != "" {
		return malformed(s.id, reason)
	}
	if status < 200 {
		return s.receiveInform(status, fields[1:], end) // without :status
	}
	noBody := s.req.Method == http.MethodHead || !message.BodyAllowed(status)
	switch {
	case noBody:
		s.remaining = 0
	case end && length > 0:
		return malformed(s.id, "body and content-length differ")
	default:
		s.remaining = length
	}
	s.makeResponse(status, length, fields[1:], end)
	s.expects.Decide(status < 300) // without a 2xx status, a body that waits for 100 Continue is not sent
	s.c.answered.Add(1)
	s.mu.Lock()
	// The fields of the response must be complete before the goroutine of RoundTrip can see ready.
	s.ready, s.eof = true, end
	s.mu.Unlock()
	s.c.touch(&s.stream)
	if end {
		s.endReceived()
	}
	return nil
}

// responseHead checks the fields of a response. It returns the status and the
// content-length, which is -1 without that field. If the fields are malformed, it returns
// the reason.
func responseHead(fields []field) (status int, length int64, reason string) {
	if len(fields) == 0 || fields[0].name != nameStatus || len(fields[0].value) != 3 {
		return 0, 0, "no valid :status"
	}
	status, err := strconv.Atoi(fields[0].value)
	if err != nil || status < 100 || status == http.StatusSwitchingProtocols {
		return 0, 0, "invalid :status " + quoted(fields[0].value)
	}
	length, reason = checkFields(fields[1:])
	return status, length, reason
}

// makeResponse fills s.rsp with the status, the length, and the fields as the header. If end is
// true, the response carries no body.
func (s *clientStream) makeResponse(status int, length int64, fields []field, end bool) {
	r := &s.rsp
	r.Proto, r.ProtoMajor = "HTTP/2.0", 2
	r.Status, r.StatusCode = message.StatusLines[status], status
	r.ContentLength = length
	r.Header = makeHeader(fields, s.slab[:])
	r.Body = &s.stream
	if end {
		if length < 0 && s.req.Method != http.MethodHead {
			r.ContentLength = 0 // no length and no bytes: net/http reports that as 0
		}
		return
	}
	r.Trailer = message.Announced(r.Header["Trailer"])
	delete(r.Header, "Trailer")
}

// receiveInform queues a 1xx response, which RoundTrip forwards by [message.Inform]. A 100
// Continue starts the sending of the request body. It is queued only for a request with hooks.
func (s *clientStream) receiveInform(status int, fields []field, end bool) error {
	if end {
		return malformed(s.id, "1xx response with END_STREAM")
	}
	if status == http.StatusContinue {
		s.expects.Decide(true) // send the body
		if s.trace.IsZero() {
			return s.c.glitch(glitchControl) // nothing to forward; counted, because a server could send many
		}
	}
	s.informed += fieldOverhead // of the status
	for i := range fields {
		s.informed += fields[i].size()
	}
	if s.informed > maxInforms {
		return malformed(s.id, "1xx responses are too large")
	}
	next := inform{status, makeHeader(fields, nil)}
	s.mu.Lock()
	s.informs = append(s.informs, next)
	s.mu.Unlock()
	s.c.touch(&s.stream)
	return nil
}
