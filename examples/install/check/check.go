package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
)

// Options say what to check, and in which cluster.
type Options struct {
	Client         kubernetes.Interface
	Namespace      string        // the control plane's namespace
	Pre            bool          // check whether the control plane can be installed, not whether it works
	Proxy          bool          // also check the proxies in ProxyNamespace
	ProxyNamespace string        // "" means all namespaces
	Wait           time.Duration // how long to wait for pods that are not ready
	Now            time.Time
}

// Outcome reports whether a check succeeded, failed, or failed with only a warning.
type Outcome string

// Outcomes of a check.
const (
	Success Outcome = "success"
	Warning Outcome = "warning"
	Failure Outcome = "error"
)

// Result describes a check and its outcome. If it did not succeed, there is also an error and a
// hint.
type Result struct {
	Description string  `json:"description"`
	Outcome     Outcome `json:"result"`
	Error       string  `json:"error,omitempty"`
	Hint        string  `json:"hint,omitempty"`
}

// Category is a group of checks.
type Category struct {
	Name   string   `json:"categoryName"`
	Checks []Result `json:"checks"`
}

// Report holds the results of all checks.
type Report struct {
	Success    bool       `json:"success"` // no check failed; warnings do not count
	Categories []Category `json:"categories"`
}

// check is one check in a category. run returns nil if it succeeds.
type check struct {
	description string
	hint        string
	fatal       bool // if it fails, Run skips all following checks
	warning     bool // a failure counts as a warning
	wait        bool // a failure may be temporary, so the check is repeated for Options.Wait
	run         func(context.Context) error
}

// category is a group of checks that run in order.
type category struct {
	name   string
	checks []check
}

// Run runs the checks that o selects. If a fatal check fails, such as a request to the API
// server, Run skips all following checks.
func Run(ctx context.Context, o Options) Report {
	// The checks share c, in which earlier ones store what later ones need.
	c := &checker{Options: o}
	// Each function returns its checks without running them.
	categories := []category{c.api(), c.version()}
	if o.Pre {
		categories = append(categories, c.setup())
	} else {
		categories = append(categories, c.existence(), c.configuration(), c.identity(), c.webhooks())
	}
	if o.Proxy && !o.Pre {
		categories = append(categories, c.proxies())
	}
	report := Report{Success: true}
	// All checks that wait share one deadline.
	deadline := time.Now().Add(o.Wait)
	for _, category := range categories {
		results := Category{Name: category.name}
		fatal := false
		for _, check := range category.checks {
			r := Result{Description: check.description, Outcome: Success}
			if err := check.try(ctx, deadline); err != nil {
				r.Outcome = Failure
				r.Error = message(err)
				r.Hint = check.hint
				if check.warning {
					r.Outcome = Warning
				} else {
					report.Success = false
				}
			}
			results.Checks = append(results.Checks, r)
			// A fatal failure ends this category, and then all others.
			if fatal = r.Outcome == Failure && check.fatal; fatal {
				break
			}
		}
		report.Categories = append(report.Categories, results)
		if fatal {
			break
		}
	}
	return report
}

// retryInterval is how long to wait before repeating a check with the field wait.
const retryInterval = time.Second

// try runs the check and returns its error. If c.wait is set, it repeats a failed check
// until the deadline or until ctx ends.
func (c check) try(ctx context.Context, deadline time.Time) error {
	for {
		err := c.run(ctx)
		// There must be time for another attempt.
		if err == nil || !c.wait || time.Now().Add(retryInterval).After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retryInterval):
		}
	}
}

// message returns err's text for the report, and explains errors about missing rights.
func message(err error) string {
	if apierrors.IsForbidden(err) {
		return "this user has no right for it: " + err.Error()
	}
	return err.Error()
}

// missing lists the names of objects that a check did not find.
type missing []string

// look returns nil and adds name to m if err means that the object does not exist.
// Otherwise it returns err, which may be nil.
func (m *missing) look(name string, err error) error {
	if apierrors.IsNotFound(err) {
		*m = append(*m, name)
		return nil
	}
	return err
}

// err returns an error that lists the names, or nil if there are none.
func (m *missing) err() error {
	if len(*m) == 0 {
		return nil
	}
	return errors.New("missing: " + strings.Join(*m, ", "))
}

// Text writes the report as text.
func (r Report) Text(w io.Writer) error {
	var b strings.Builder
	for _, category := range r.Categories {
		fmt.Fprintf(&b, "%s\n%s\n", category.Name, strings.Repeat("-", len(category.Name)))
		for _, c := range category.Checks {
			fmt.Fprintf(&b, "%s %s\n", c.Outcome.mark(), c.Description)
			if c.Outcome != Success {
				fmt.Fprintf(&b, "    %s\n    hint: %s\n", strings.ReplaceAll(c.Error, "\n", "\n    "), c.Hint)
			}
		}
		b.WriteByte('\n')
	}
	// The last line is that of "linkerd check".
	outcome := Success
	if !r.Success {
		outcome = Failure
	}
	fmt.Fprintf(&b, "Status check results are %s\n", outcome.mark())
	_, err := io.WriteString(w, b.String())
	return err
}

// mark returns the symbol of "linkerd check" for the outcome.
func (o Outcome) mark() string {
	switch o {
	case Warning:
		return "‼"
	case Failure:
		return "×"
	case Success:
	}
	return "√"
}

// JSON writes the report as JSON.
func (r Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}
