// Command demo checks the output of
//
//	go run ./examples/demo --for 10s -o json
//
// on standard input. It prints a summary, and exits with 1 and all reasons if
// the output is not as documented.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	found, err := check(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(found)
}

// Names in the demo.
const (
	failing = "/VoteDoughnut" // suffix of the path of the method that always fails
	voting  = "/api/vote"     // path that fails if the vote is for a doughnut
	replica = "emoji-"        // prefix of the names of the emoji replicas
	slow    = "emoji-slow"    // name of the slow replica
)

// row is one row of top. A nil pointer means a missing value.
type row struct {
	Source      *string  `json:"source"`
	Destination *string  `json:"destination"`
	Method      *string  `json:"method"`
	Path        *string  `json:"path"`
	Count       *int     `json:"count"`
	Best        *float64 `json:"best_ms"`
	Worst       *float64 `json:"worst_ms"`
	Last        *float64 `json:"last_ms"`
	SuccessRate *float64 `json:"success_rate"`
}

// check reads the rows. It returns a summary, or all failed checks.
func check(r io.Reader) (string, error) {
	rows, err := read(r)
	if err != nil {
		return "", err
	}
	rates, rateErr := checkRates(rows)
	shares, shareErr := checkShares(rows)
	if err := errors.Join(rateErr, shareErr); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d rows; %s; %s", len(rows), rates, shares), nil
}

func read(r io.Reader) ([]row, error) {
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	var rows []row
	if err := dec.Decode(&rows); err != nil {
		return nil, fmt.Errorf("not an array of rows: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something stands after the array of rows")
	}
	if len(rows) == 0 {
		return nil, errors.New("no rows")
	}
	for i, r := range rows {
		if err := r.check(); err != nil {
			return nil, fmt.Errorf("row %d: %w", i, err)
		}
	}
	return rows, nil
}

// check checks one row.
func (r row) check() error {
	for _, text := range []*string{r.Source, r.Destination, r.Method, r.Path} {
		if text == nil || *text == "" {
			return errors.New("source, destination, method or path is missing")
		}
	}
	for _, number := range []*float64{r.Best, r.Worst, r.Last, r.SuccessRate} {
		if number == nil || *number < 0 {
			return fmt.Errorf("%s: best_ms, worst_ms, last_ms or success_rate is missing or negative", r)
		}
	}
	switch {
	case r.Count == nil || *r.Count <= 0:
		return fmt.Errorf("%s: count is missing, or not above 0", r)
	case *r.Last < *r.Best || *r.Worst < *r.Last:
		return fmt.Errorf("%s: best %v, last %v, worst %v are out of order", r, *r.Best, *r.Last, *r.Worst)
	case *r.SuccessRate > 1:
		return fmt.Errorf("%s: success rate %v is above 1", r, *r.SuccessRate)
	}
	return nil
}

func (r row) String() string {
	return fmt.Sprintf("%s -> %s %s %s", *r.Source, *r.Destination, *r.Method, *r.Path)
}

// checkRates checks that the failing method never succeeds, that some votes
// fail because of it, and that nothing else fails.
func checkRates(rows []row) (string, error) {
	var errs []error
	var failed, votes int
	var good float64
	for _, r := range rows {
		switch {
		case strings.HasSuffix(*r.Path, failing):
			failed += *r.Count
			if *r.SuccessRate != 0 {
				errs = append(errs, fmt.Errorf("%s: success rate %v, want 0", r, *r.SuccessRate))
			}
		case *r.Path == voting:
			votes += *r.Count
			good += float64(*r.Count) * *r.SuccessRate
		case *r.SuccessRate != 1:
			errs = append(errs, fmt.Errorf("%s: success rate %v, want 1", r, *r.SuccessRate))
		}
	}
	if failed == 0 {
		errs = append(errs, fmt.Errorf("no row with a path that ends in %s", failing))
	}
	if votes == 0 {
		errs = append(errs, fmt.Errorf("no row with the path %s", voting))
	}
	rate := good / float64(max(votes, 1))
	if votes > 0 && (rate <= 0 || rate >= 1) {
		errs = append(errs, fmt.Errorf("%s: success rate %v of %d, want above 0 and below 1", voting, rate, votes))
	}
	return fmt.Sprintf("all %d of %s failed; %s succeeded %.2f", failed, failing, voting, rate), errors.Join(errs...)
}

// checkShares checks that the slow replica gets less than a fifth of an even
// share.
func checkShares(rows []row) (string, error) {
	calls := map[string]int{}
	total := 0
	for _, r := range rows {
		if strings.HasPrefix(*r.Destination, replica) {
			calls[*r.Destination] += *r.Count
			total += *r.Count
		}
	}
	if calls[slow] == 0 || len(calls) < 3 {
		return "", fmt.Errorf("calls by replica: %v, want %s and at least two others", calls, slow)
	}
	even := float64(total) / float64(len(calls))
	if got := float64(calls[slow]); got >= even/5 {
		return "", fmt.Errorf("%s got %v calls of %d, want less than a fifth of the even share, %.1f", slow, got, total, even/5)
	}
	return fmt.Sprintf("%s got %d calls, an even share is %.0f", slow, calls[slow], even), nil
}
