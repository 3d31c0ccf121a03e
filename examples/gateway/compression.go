package main

import (
	"mime"
	"net/http"
	"slices"

	"github.com/klauspost/compress/gzhttp"

	"github.com/gotower/gotower/examples/gateway/config"
)

// compressible has the content types that are compressed by default. text/event-stream is
// missing, because compression would delay the headers of a stream until its first event.
var compressible = []string{ //nolint:gochecknoglobals // constant
	"text/css", "text/csv", "text/html", "text/javascript", "text/markdown", "text/plain", "text/xml",
	"application/javascript", "application/json", "application/problem+json", "application/xml", "image/svg+xml",
}

// compressed returns a handler that compresses the responses of next as c specifies.
// Package gzhttp does the compression.
func compressed(c *config.Compression, next http.Handler) (http.Handler, error) {
	types := c.ContentTypes
	if len(types) == 0 {
		types = compressible
	}
	wrap, err := gzhttp.NewWrapper(gzhttp.MinSize(c.MinBytes), gzhttp.ContentTypes(types), gzhttp.EnableZstd(true))
	if err != nil {
		return nil, err
	}
	return wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&selective{ResponseWriter: w, types: types}, r)
	})), nil
}

// selective wraps the compressing ResponseWriter of gzhttp. A response bypasses gzhttp if
// its content type is not compressed, because gzhttp would delay its headers until the
// first byte of the body.
type selective struct {
	http.ResponseWriter

	types []string
}

// WriteHeader sends the headers. If the content type of the response is not compressed,
// WriteHeader and all later calls bypass the compressing ResponseWriter.
func (s *selective) WriteHeader(status int) {
	if status >= http.StatusOK {
		kind, _, _ := mime.ParseMediaType(s.Header().Get("Content-Type"))
		direct, ok := s.ResponseWriter.(interface{ Unwrap() http.ResponseWriter })
		if ok && !slices.Contains(s.types, kind) {
			s.ResponseWriter = direct.Unwrap()
		}
	}
	s.ResponseWriter.WriteHeader(status)
}

// Unwrap returns the inner writer, for [http.ResponseController].
func (s *selective) Unwrap() http.ResponseWriter { return s.ResponseWriter }
