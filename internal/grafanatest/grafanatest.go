// Package grafanatest checks that a Grafana dashboard uses only series that exist.
package grafanatest

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Series is one time series of Prometheus. The label __name__ is its name.
type Series struct {
	Labels map[string]string
	Value  float64
}

// Parse returns the series on a page in Prometheus's text format.
func Parse(t *testing.T, page string) (series []Series) {
	t.Helper()
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		// A line is name{labels} value. The last space comes before the value.
		sep := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		require.Positive(t, sep, line)
		value, err := strconv.ParseFloat(strings.TrimSpace(line[sep:]), 64)
		require.NoError(t, err, line)
		name, labels, _ := strings.Cut(line[:sep], "{")
		s := Series{map[string]string{"__name__": name}, value}
		for _, l := range regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`).FindAllStringSubmatch(labels, -1) {
			s.Labels[l[1]] = l[2]
		}
		series = append(series, s)
	}
	return series
}

// Missing returns the queries in a dashboard that would show nothing: they select no series, or use a
// label that no selected series carries. A test expects none. text is the dashboard in JSON. series are
// those that exist, among which a query selects. If active is true, series with the value 0 count as
// missing, so that a test must cause each of them to change.
func Missing(t *testing.T, text []byte, series []Series, active bool) (queries []string) {
	t.Helper()
	var dashboard struct {
		Templating struct {
			List []struct {
				Name  string `json:"name"`
				Type  string `json:"type"`
				Query string `json:"query"`
			} `json:"list"`
		} `json:"templating"`
		Panels []struct {
			Targets []struct {
				Expr         string `json:"expr"`
				LegendFormat string `json:"legendFormat"`
			} `json:"targets"`
		} `json:"panels"`
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	variables := map[string]bool{}
	// check adds query to the result if selector selects no series, or if no selected one has a label.
	check := func(query, selector string, labels []string) {
		name, matchers, _ := strings.Cut(selector, "{")
		want := map[string]string{"__name__": name}
		for _, m := range regexp.MustCompile(`(\w+)(=~?)"([^"]*)"`).FindAllStringSubmatch(matchers, -1) {
			if m[2] == "=" {
				want[m[1]] = m[3]
			} else {
				require.True(t, variables[m[1]] && m[3] == "$"+m[1], query)
			}
		}
		found := false
		missing := map[string]bool{}
		for _, l := range labels {
			missing[l] = true
		}
		for _, s := range series {
			if !includes(s.Labels, want) || active && s.Value == 0 {
				continue
			}
			found = true
			for l := range s.Labels {
				delete(missing, l)
			}
		}
		if !found || len(missing) > 0 {
			queries = append(queries, query)
		}
	}
	for _, v := range dashboard.Templating.List {
		if m := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(v.Query); v.Type == "query" {
			require.NotNil(t, m, v.Query)
			variables[v.Name] = true
			check(v.Query, m[1], []string{m[2]})
		}
	}
	require.NotEmpty(t, dashboard.Panels)
	for _, p := range dashboard.Panels {
		require.NotEmpty(t, p.Targets)
		for _, target := range p.Targets {
			var labels []string
			for _, match := range regexp.MustCompile(`by \(([\w,]+)\)`).FindAllStringSubmatch(target.Expr, -1) {
				labels = append(labels, strings.Split(match[1], ",")...)
			}
			for _, l := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				labels = append(labels, l[1])
			}
			selectors := regexp.MustCompile(`\w+\{[^{}]*\}`).FindAllString(target.Expr, -1)
			require.NotEmpty(t, selectors, target.Expr)
			for _, s := range selectors {
				check(target.Expr, s, labels)
			}
		}
	}
	return queries
}

// includes reports whether labels has all labels in want, with the same values.
func includes(labels, want map[string]string) bool {
	for name, value := range want {
		if labels[name] != value {
			return false
		}
	}
	return true
}
