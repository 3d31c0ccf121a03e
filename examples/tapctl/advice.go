package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/examples/tapctl/trust"
)

// advised is the error err with advice for the user. Its text is the text of err, followed
// by the advice.
type advised struct {
	advice string
	err    error
}

func (a *advised) Error() string { return fmt.Sprintf("%v. %s", a.err, a.advice) }

func (a *advised) Unwrap() error { return a.err }

// advise prepares err, a command's error, for the user. A gRPC error becomes its message without
// gRPC's prefixes, in one printable line, with advice. Without advice, the line contains the
// complete text. Any other error is returned unchanged.
func advise(err error) error {
	// All gRPC errors have this method, even wrapped ones.
	var s interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &s) {
		return err
	}
	st := s.GRPCStatus()
	// A TLS error has its own explanation.
	if found, ok := trust.FindError(reason(st.Message())); ok {
		return &short{named(err, found), err}
	}
	hint := advice(st.Code(), st.Message())
	// Without advice, the complete text may help.
	if hint == "" {
		return &short{text.Clean(err.Error()), err}
	}
	return &advised{hint, &short{named(err, reason(st.Message())), err}}
}

// named puts a process's name and ": " in front of message. It takes the name from err's text,
// which comes from that process and begins with it. If the text does not contain ": ", the name
// is left out.
func named(err error, message string) string {
	if name, _, ok := strings.Cut(err.Error(), ": "); ok {
		return name + ": " + message
	}
	return message
}

// short is an error that replaces the text of err by a shorter one.
type short struct {
	text string
	err  error
}

func (s *short) Error() string { return s.text }

func (s *short) Unwrap() error { return s.err }

// reason returns a gRPC message without the prefixes that gRPC and tap add, as one
// printable line.
func reason(message string) string {
	// gRPC quotes the message of an inner error.
	if _, desc, ok := strings.Cut(message, `desc = "`); ok {
		if s, err := strconv.Unquote(`"` + strings.TrimSuffix(desc, `"`) + `"`); err == nil {
			message = s
		}
	}
	message = strings.TrimPrefix(message, "transport: Error while dialing: ")
	return text.Clean(strings.TrimPrefix(message, "tap: "))
}

// adviceIdentity returns advice for the case that the tap does not let this client watch. The
// advice depends on the reason in message, the error message of the server.
func adviceIdentity(message string) string {
	// The texts are those of gotower's and linkerd's tap servers.
	switch {
	case strings.Contains(message, "may not watch"), strings.Contains(message, "Unauthorized peer"):
		return "Use a certificate with an allowed name (--cert), or allow this name in the process:" +
			" LINKERD2_PROXY_TAP_SVC_NAME, tap.WithAllowedIdentities(name)"
	case strings.Contains(message, "no verified certificate"), strings.Contains(message, "not_provided_by_remote"):
		return trust.AdviceShow
	}
	return "Without TLS, tap serves clients of its own machine only. Run tapctl there," +
		" or in a cluster: kubectl port-forward POD 4190; or use TLS with an allowed name: --cacert FILE --cert FILE"
}

// advice returns what a user can do about an error of a tap server, or "" if the code does not suggest anything.
func advice(code codes.Code, message string) string {
	switch code {
	case codes.Unavailable:
		// A server of another protocol closes the connection before gRPC's preface is complete.
		if strings.Contains(message, "preface") {
			return "The server does not speak gRPC. Is this the tap port?" +
				" If it uses TLS: --cacert FILE and --cert FILE"
		}
		return "No server accepts connections. Is the program running, and is this its tap port" +
			" (LINKERD2_PROXY_CONTROL_LISTEN_ADDR, 4190 by default)?"
	case codes.Unimplemented:
		return "The gRPC server has no tap. Is this the tap port, and is tap enabled?"
	case codes.Unauthenticated:
		return adviceIdentity(message)
	case codes.PermissionDenied:
		// The message names a body or bodies.
		if strings.Contains(message, "bod") {
			return "Omit --body, or enable bodies in the program: tap.NewRegistry(tap.WithBodies(max, redact))."
		}
		return "The value of this header field is withheld. Match its presence (--header NAME), or omit it."
	case codes.ResourceExhausted:
		return "The process has its maximum of watchers. End another tap first."
	case codes.DeadlineExceeded:
		return "The server does not answer. Is it a gRPC server, and is this its tap port?"
	case codes.FailedPrecondition:
		return "The program must set tap.WithDescribe(func() layer.Node { … })."
	}
	return ""
}
