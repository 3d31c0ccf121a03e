package view

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"time"
)

//go:embed page
var files embed.FS

// pageVersion returns a hash over the page's files, which changes whenever the page does.
func pageVersion() string {
	sum := sha256.New()
	_ = fs.WalkDir(files, ".", func(name string, _ fs.DirEntry, _ error) error {
		body, _ := fs.ReadFile(files, name) // empty for a directory
		_, _ = fmt.Fprintf(sum, "%s %d ", name, len(body))
		_, _ = sum.Write(body)
		return nil
	})
	return hex.EncodeToString(sum.Sum(nil)[:12])
}

// serveAsset serves a file of the page, which is part of the binary.
func (h *Handler) serveAsset(w http.ResponseWriter, r *http.Request, name string) {
	if name == "" {
		name = "index.html"
	}
	body, err := fs.ReadFile(files, path.Join("page", path.Clean("/"+name)))
	if err != nil {
		http.NotFound(w, r)
		return
	}
	// Types registered in the operating system may be wrong.
	w.Header().Set("Content-Type", map[string]string{
		".html": "text/html; charset=utf-8",
		".css":  "text/css; charset=utf-8",
		".js":   "text/javascript; charset=utf-8",
		".svg":  "image/svg+xml",
	}[path.Ext(name)])
	w.Header().Set("ETag", `"`+h.edition+`"`)
	w.Header().Set("Cache-Control", "no-cache")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}
