package view

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// stream is a response that consists of server-sent events.
type stream struct {
	w            http.ResponseWriter
	control      *http.ResponseController
	writeTimeout time.Duration // limit for writing one event
	buf          bytes.Buffer
}

// newStream sets the headers of w for server-sent events. Each write must succeed within
// writeTimeout.
func newStream(w http.ResponseWriter, writeTimeout time.Duration) *stream {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // no buffering by proxies
	return &stream{w: w, control: http.NewResponseController(w), writeTimeout: writeTimeout}
}

// send sends v as JSON in an event of the given kind.
func (s *stream) send(event string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("event %s: %w", event, err)
	}
	return s.raw(event, data)
}

// raw sends an event whose data is already encoded.
func (s *stream) raw(event string, data []byte) error {
	s.buf.Reset()
	fmt.Fprintf(&s.buf, "event: %s\ndata: %s\n\n", event, data)
	// This replaces the WriteTimeout of the server, which would end the stream.
	_ = s.control.SetWriteDeadline(time.Now().Add(s.writeTimeout))
	if _, err := s.w.Write(s.buf.Bytes()); err != nil {
		return err
	}
	return s.control.Flush()
}
