// Package cli does what the example programs' main functions have in common: it parses the
// command line, handles signals and returns the exit status.
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
	"time"
)

// Exit statuses, after a failure and for an invalid command line.
const (
	exitFailed = 1
	exitUsage  = 2
)

// Interrupted returns a context that ends at the first interrupt or SIGTERM. A second signal
// kills the program, in case it does not shut down. stop ends the context and stops the handling
// of signals.
func Interrupted() (ctx context.Context, stop context.CancelFunc) {
	ctx, stop = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// misuse marks an error as one in the command line.
type misuse struct{ error }

func (m misuse) Error() string { return m.error.Error() + "; see -help" }
func (m misuse) Unwrap() error { return m.error }

// Misuse marks err as an error in the command line. [Status] returns 2 for it.
func Misuse(err error) error { return misuse{err} }

// Describe sets the help text for f: text, which describes the program, and then the flags.
func Describe(f *flag.FlagSet, text string) {
	f.Usage = func() {
		fmt.Fprintf(f.Output(), "%s\n\n", text)
		f.PrintDefaults()
	}
}

// Parse parses args into the flags of f. Arguments that are not flags are an error. For -help,
// Parse writes the help text to help and returns [flag.ErrHelp]. It marks any other error with
// [Misuse], and does not print it.
//
// A flag whose usage begins with "with -NAME: " requires the flag NAME.
func Parse(f *flag.FlagSet, args []string, help io.Writer) error {
	if err := ParseFlags(f, args, help); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return Misuse(fmt.Errorf("%q: arguments must be flags", f.Arg(0)))
	}
	return nil
}

// ParseFlags is like [Parse], but allows arguments after the flags.
func ParseFlags(f *flag.FlagSet, args []string, help io.Writer) error {
	f.SetOutput(io.Discard) // Status prints the error
	err := parse(f, args)
	if errors.Is(err, flag.ErrHelp) {
		// Printing the help needs the flags, so it is only possible after parse.
		f.SetOutput(help)
		f.Usage()
		return err
	}
	// The usage of a flag tells which other flag it requires.
	f.Visit(func(set *flag.Flag) {
		condition, _, _ := strings.Cut(set.Usage, ": ")
		required, ok := strings.CutPrefix(condition, "with -")
		if ok && f.Lookup(required).Value.String() == "false" {
			err = cmp.Or(err, fmt.Errorf("-%s requires -%s", set.Name, required))
		}
	})
	if err != nil {
		return Misuse(err)
	}
	return nil
}

// parse parses args into the flags of f. Unlike package flag, it says what is allowed if a
// duration is invalid.
func parse(f *flag.FlagSet, args []string) error {
	// Each flag with a duration is wrapped during parsing, so that its error tells what is allowed.
	f.VisitAll(func(option *flag.Flag) {
		if v, ok := option.Value.(flag.Getter); ok {
			if _, ok := v.Get().(time.Duration); ok {
				option.Value = durationFlag{v}
			}
		}
	})
	defer f.VisitAll(func(option *flag.Flag) {
		if v, ok := option.Value.(durationFlag); ok {
			option.Value = v.Value // the help text shows its type
		}
	})
	return f.Parse(args)
}

// durationFlag wraps a flag that holds a duration.
type durationFlag struct{ flag.Value }

// Set implements [flag.Value].
func (d durationFlag) Set(text string) error {
	if d.Value.Set(text) != nil {
		return errors.New("want a duration such as 250ms, 10s or 24h")
	}
	return nil
}

// Status prints err to stderr after the program's name, and returns the exit status: 2 if err is
// marked with [Misuse], and otherwise 1. For nil and [flag.ErrHelp] it prints nothing and returns
// 0.
func Status(stderr io.Writer, name string, err error) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintf(stderr, "%s: %v\n", name, err)
	// The status 2 is that of package flag.
	if errors.As(err, new(misuse)) {
		return exitUsage
	}
	return exitFailed
}
