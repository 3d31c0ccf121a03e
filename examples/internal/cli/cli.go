// Package cli parses the command lines of the example programs, handles their signals and
// returns their exit status.
package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
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

// Describe sets the help text of f: the argument text, which describes the program, and then
// the flags.
func Describe(f *flag.FlagSet, text string) {
	f.Usage = func() {
		fmt.Fprintf(f.Output(), "%s\n\n", text)
		f.PrintDefaults()
	}
}

// Parse parses args, the command line, into the flags of f. Arguments that are not flags
// are an error. For -help, Parse writes the help text to help and returns [flag.ErrHelp].
// It marks any other error by [Misuse], and does not print it.
//
// If the usage of a flag begins with "with -NAME: ", the flag is an error without the flag NAME.
func Parse(f *flag.FlagSet, args []string, help io.Writer) error {
	if err := ParseFlags(f, args, help); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return Misuse(fmt.Errorf("%q: arguments must be flags", f.Arg(0)))
	}
	return nil
}

// ParseFlags does the same as [Parse], but allows arguments after the flags.
func ParseFlags(f *flag.FlagSet, args []string, help io.Writer) error {
	f.SetOutput(io.Discard) // Status prints the error
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		f.SetOutput(help)
		f.Usage()
		return err
	}
	f.Visit(func(set *flag.Flag) {
		condition, _, _ := strings.Cut(set.Usage, ": ")
		other, ok := strings.CutPrefix(condition, "with -")
		if ok && f.Lookup(other).Value.String() == "false" {
			err = cmp.Or(err, fmt.Errorf("-%s requires -%s", set.Name, other))
		}
	})
	if err != nil {
		return Misuse(err)
	}
	return nil
}

// Status prints err to stderr, after the name of the program, and returns the exit status of the
// program: 2 if err is marked by [Misuse] and 1 otherwise. For nil and [flag.ErrHelp] it prints
// nothing and returns 0.
func Status(stderr io.Writer, name string, err error) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintf(stderr, "%s: %v\n", name, err)
	if errors.As(err, new(misuse)) {
		return exitUsage
	}
	return exitFailed
}
