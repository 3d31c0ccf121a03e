package main

import (
	"encoding/json"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// shelf is the response of a version.
type shelf struct {
	Version string   `json:"version"`
	Books   []string `json:"books,omitempty"`
	Bytes   int64    `json:"bytes,omitempty"`
	From    string   `json:"from,omitempty"` // X-From of the request
}

// books is one version of the service behind the gateway.
func books(version string) http.Handler {
	var requests atomic.Int64
	list := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Shelf", "7") // an internal header
		answer(w, http.StatusOK, shelf{Version: version, Books: []string{"Middlemarch", "Emma"}, From: r.Header.Get("X-From")})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /books", list)
	mux.HandleFunc("GET /books/shaky", list)
	mux.HandleFunc("GET /books/flaky", func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1)%2 == 1 {
			http.Error(w, "flaky", http.StatusServiceUnavailable)
			return
		}
		list(w, r)
	})
	mux.HandleFunc("GET /books/slow", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(5 * time.Second):
			list(w, r)
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("POST /books", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		answer(w, http.StatusCreated, shelf{Version: version, Bytes: n})
	})
	return mux
}

func answer(w http.ResponseWriter, status int, s shelf) {
	text, err := json.Marshal(s)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}
