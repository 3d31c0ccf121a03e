package stream_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/stream"
)

func ExampleReconnect() {
	attempt := 0
	open := func(context.Context) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			if attempt++; attempt == 3 {
				yield("", io.ErrUnexpectedEOF)
				return
			}
			yield(fmt.Sprintf("news of stream %d", attempt), nil)
		}
	}
	final := func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }

	b := backoff.Backoff{Min: time.Millisecond, Max: time.Millisecond}
	for news, err := range stream.Reconnect(context.Background(), b, open, final) {
		fmt.Printf("%q %v\n", news, err)
	}
	// Output:
	// "news of stream 1" <nil>
	// "" stream ended
	// "news of stream 2" <nil>
	// "" stream ended
	// "" unexpected EOF
}
