// Package cli parses the command lines of the example programs, handles their signals and
// returns their exit status.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// The exit status of a program that has failed, and of a program with an invalid command
// line.
const (
	exitFailed = 1
	exitUsage  = 2
)

// Interrupted returns a context that ends at the first interrupt or SIGTERM. A second
// signal ends the program at once. stop ends the context and the handling of signals.
func Interrupted() (ctx context.Context, stop context.CancelFunc) {
	ctx, stop = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// misuse marks an error as an error of the command line.
type misuse struct{ error }

func (m misuse) Error() string { return m.error.Error() + "; see -help" }
func (m misuse) Unwrap() error { return m.error }

// Misuse marks err as an error of the command line. [Status] returns 2 for it.
func Misuse(err error) error { return misuse{err} }

// Parse parses args, the command line, into the flags of f. Arguments that are not flags
// are an error. For -help, Parse writes the help text to help and returns [flag.ErrHelp].
// It marks any other error by [Misuse], and does not print it.
func Parse(f *flag.FlagSet, args []string, help io.Writer) error {
	f.SetOutput(io.Discard) // Status prints the error
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		f.SetOutput(help)
		f.Usage()
		return err
	case err != nil:
		return Misuse(err)
	case f.NArg() > 0:
		return Misuse(fmt.Errorf("%q: arguments must be flags", f.Arg(0)))
	}
	return nil
}

// Status prints err to stderr and returns the exit status of the program: 2 if err is
// marked by [Misuse] and 1 otherwise. For nil and [flag.ErrHelp] it prints nothing and
// returns 0.
func Status(stderr io.Writer, err error) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintln(stderr, err)
	if errors.As(err, new(misuse)) {
		return exitUsage
	}
	return exitFailed
}
