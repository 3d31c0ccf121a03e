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

func (f finding) print(out io.Writer) {
	switch {
	case f.err == nil:
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
