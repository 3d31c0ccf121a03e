package main

import (
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/examples/tapctl/trust"
)

// finding is the result of one check. It is printed as one line. If the check failed, the
// error and the advice follow on further lines.
type finding struct {
	what   string
	err    error  // nil means that the check passed
	advice string // how to fix err
	warn   bool   // whether the failure is only a warning, because the feature is optional
}

// print writes the finding with the symbols of "linkerd check": passed, warning or failed.
func (f finding) print(out io.Writer) {
	switch {
	case f.err == nil:
		// The texts may come from another process, so control characters are removed.
		fmt.Fprintf(out, "√ %s\n", f.what)
		return
	case f.warn:
		fmt.Fprintf(out, "‼ %s\n", f.what)
	default:
		fmt.Fprintf(out, "× %s\n", f.what)
	}
	fmt.Fprintf(out, "    %s\n", text.Clean(f.err.Error()))
	if f.advice != "" {
		fmt.Fprintf(out, "    %s\n", text.Clean(f.advice))
	}
}

// with returns f with err as its error, and with advice on it. A nil err leaves f as it is.
func (f finding) with(err error) finding {
	if err == nil {
		return f
	}
	message := reason(status.Convert(err).Message())
	if found, ok := trust.FindError(message); ok { // an error of the handshake
		f.err = errors.New(found)
		return f
	}
	f.err = errors.New(message)
	f.advice = advice(status.Code(err), err.Error())
	return f
}
