package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// text is a comment, a message in Go code, or a Markdown page, with the place where it begins.
type text struct {
	file  string
	line  int
	words string
}

// read returns the texts of all Go files and Markdown pages below dir.
func read(dir string) (texts []text, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != dir && name != ".ci" && (name == "testdata" || strings.HasPrefix(name, ".")) {
				return filepath.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		var more []text
		switch {
		case name == "CHANGELOG.md":
		case strings.HasSuffix(name, ".go"):
			more, err = readGo(path, rel)
		case strings.HasSuffix(name, ".md"):
			more, err = readMarkdown(path, rel)
		}
		texts = append(texts, more...)
		return err
	})
	return texts, err
}

func readGo(path, rel string) (texts []text, err error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
	if err != nil || ast.IsGenerated(file) {
		return nil, err
	}
	for _, group := range file.Comments {
		var lines []string
		for _, c := range group.List {
			for line := range strings.Lines(c.Text) {
				lines = append(lines, commentLine(line))
			}
		}
		// The output of an example is not prose.
		if i := slices.IndexFunc(lines, func(s string) bool { return strings.HasPrefix(strings.ToLower(s), "output:") }); i >= 0 {
			lines = lines[:i]
		}
		texts = append(texts, text{rel, fset.Position(group.Pos()).Line, strings.Join(lines, "\n")})
	}
	if strings.HasSuffix(rel, "_test.go") {
		return texts, nil // most strings are input and expected output
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			// Messages contain spaces; keys, paths and patterns rarely do.
			if s, err := strconv.Unquote(lit.Value); err == nil && strings.Count(s, " ") > 1 {
				texts = append(texts, text{rel, fset.Position(lit.Pos()).Line, s})
			}
		}
		return true
	})
	return texts, nil
}

// commentLine returns the text of one line of a comment without the comment mark. It
// returns "" for a line that is a directive, code or part of a table.
func commentLine(line string) string {
	line = strings.TrimRight(line, "\n")
	body, isLine := strings.CutPrefix(line, "//")
	if !isLine {
		body = strings.TrimSuffix(strings.TrimPrefix(line, "/*"), "*/")
	}
	if strings.HasPrefix(body, "go:") || strings.HasPrefix(body, "\t") || strings.HasPrefix(body, "   ") {
		return ""
	}
	return strings.TrimSpace(body)
}

var (
	codeSpan = regexp.MustCompile("`[^`\n]*`")
	link     = regexp.MustCompile(`\]\([^)]*\)`)
)

func readMarkdown(path, rel string) ([]text, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var lines []string
	inCode := false
	for line := range strings.Lines(string(b)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			inCode = !inCode
			line = ""
		case inCode, strings.HasPrefix(line, "    "):
			line = ""
		}
		// A table cell and a heading are separate sentences.
		if strings.HasPrefix(line, "|") || strings.HasPrefix(line, "#") {
			line = strings.ReplaceAll(line, "|", " . ") + " ."
		}
		line = codeSpan.ReplaceAllString(line, "code")
		lines = append(lines, link.ReplaceAllString(line, "]"))
	}
	return []text{{rel, 1, strings.Join(lines, "\n")}}, nil
}
