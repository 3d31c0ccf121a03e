package admin

import (
	"encoding/json"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// serveEnviron shows the environment, or of it what the query names; what is
// not set is null.
func (h *Handler) serveEnviron(w http.ResponseWriter, r *http.Request) {
	if !acceptsJSON(r.Header) {
		plain(w, http.StatusNotAcceptable, "the answer is application/json\n")
		return
	}
	query := r.URL.RawQuery
	if strings.Contains(query, "=") {
		answerJSON(w, http.StatusBadRequest, map[string]string{
			"error": "env.json query parameters may not contain key-value pairs",
		})
		return
	}
	all := map[string]*string{}
	for _, entry := range h.config.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		value = shown(name, value)
		all[name] = &value
	}
	if query == "" {
		answerJSON(w, http.StatusOK, all)
		return
	}
	some := map[string]*string{}
	for name := range strings.SplitSeq(query, "&") {
		some[name] = all[name]
	}
	answerJSON(w, http.StatusOK, some)
}

const redacted = "(redacted)"

// shown is what is shown of a variable: nothing of one whose name says that it
// is a secret, and no password in a URL.
func shown(name, value string) string {
	if isSecret(name) {
		return redacted
	}
	if scheme, rest, ok := strings.Cut(value, "://"); ok {
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			return scheme + "://" + redacted + rest[at:]
		}
	}
	return value
}

// isSecret goes by the name, as most values do not say.
func isSecret(name string) bool {
	name = strings.ToUpper(name)
	if name == "PWD" || name == "OLDPWD" { // directories
		return false
	}
	name = strings.ReplaceAll(name, "AUTHORITY", "")
	return slices.ContainsFunc([]string{
		"TOKEN", "SECRET", "PASS", "PWD", "KEY", "CREDENTIAL", "AUTH", "COOKIE", "DSN", "CONNECTION_STRING",
	}, func(part string) bool { return strings.Contains(name, part) })
}

func answerJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // a state that is neither text nor a number
		plain(w, http.StatusInternalServerError, err.Error()+"\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

// acceptsJSON reads Accept; none is everything.
func acceptsJSON(h http.Header) bool {
	accept := h.Values("Accept")
	if len(accept) == 0 {
		return true
	}
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		kind, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		if q, err := strconv.ParseFloat(params["q"], 64); params["q"] != "" && (err != nil || q <= 0) {
			continue
		}
		if kind == "application/json" || kind == "application/*" || kind == "*/*" {
			return true
		}
	}
	return false
}
