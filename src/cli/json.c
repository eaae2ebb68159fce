/* A strict JSON reader (json.h): one pass over the text, values that are kept as what was read. */
#include "cli/json.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 32

static json *read_value(const char **at, int depth);


static void skip_space(const char **at) {
    *at += strspn(*at, " \t\r\n");
}


static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}


static bool read_number(const char **at, double *number) {
    const char *c = *at;
    c += *c == '-';
    if (*c == '0')
        c++;
    else if (is_digit(*c))
        while (is_digit(*c))
            c++;
    else
        return false;
    if (*c == '.') {
        if (!is_digit(*++c))
            return false;
        while (is_digit(*c))
            c++;
    }
    if (*c == 'e' || *c == 'E') {
        c++;
        c += *c == '+' || *c == '-';
        if (!is_digit(*c))
            return false;
        while (is_digit(*c))
            c++;
    }
    *number = strtod(*at, NULL);
    *at = c;
    return true;
}


static bool read_escape(const char **at, char *to) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *c = *at;
    if (*c == 'u') {
        if (strspn(c + 1, "0123456789abcdefABCDEF") < 4)
            return false;
        char digits[5] = {c[1], c[2], c[3], c[4], 0};
        long code = strtol(digits, NULL, 16);
        *to = code > 0 && code < 0x80 ? (char)code : '?';
        *at = c + 5;
        return true;
    }
    const char *found = *c ? strchr(names, *c) : NULL;
    if (!found)
        return false;
    *to = values[found - names];
    *at = c + 1;
    return true;
}


static char *read_string(const char **at) {
    if (**at != '"')
        return NULL;
    const char *c = *at + 1;
    char *text = malloc(strlen(c) + 1), *to = text;
    while (text && *c != '"') {
        bool sound = (unsigned char)*c >= 0x20;
        if (sound && *c == '\\') {
            c++;
            sound = read_escape(&c, to++);
        } else if (sound) {
            *to++ = *c++;
        }
        if (!sound) {
            free(text);
            return NULL;
        }
    }
    if (text)
        *to = 0;
    *at = c + 1;
    return text;
}


static bool add_child(json *parent, json *child, char *name) {
    if (!child) {
        free(name);
        return false;
    }
    child->name = name;
    if (parent->last)
        parent->last->next = child;
    else
        parent->first = child;
    parent->last = child;
    parent->count++;
    return true;
}


static bool read_children(json *parent, const char **at, int depth) {
    bool object = parent->type == JSON_OBJECT;
    char close = object ? '}' : ']';
    ++*at;
    skip_space(at);
    if (**at == close) {
        ++*at;
        return true;
    }
    for (;; ++*at) {
        char *name = NULL;
        skip_space(at);
        if (object) {
            name = read_string(at);
            if (!name)
                return false;
            skip_space(at);
            if (**at != ':' || json_field(parent, name)) {
                free(name);
                return false;
            }
            ++*at;
        }
        if (!add_child(parent, read_value(at, depth + 1), name))
            return false;
        skip_space(at);
        if (**at == close) {
            ++*at;
            return true;
        }
        if (**at != ',')
            return false;
    }
}


static bool read_word(const char **at, const char *word) {
    size_t length = strlen(word);
    if (strncmp(*at, word, length) != 0)
        return false;
    *at += length;
    return true;
}


static json *read_value(const char **at, int depth) {
    json *value = calloc(1, sizeof(*value));
    bool sound = false;
    skip_space(at);
    if (!value || depth > DEPTH_MAX) {
        free(value);
        return NULL;
    }
    if (**at == '{' || **at == '[') {
        value->type = **at == '{' ? JSON_OBJECT : JSON_ARRAY;
        sound = read_children(value, at, depth);
    } else if (**at == '"') {
        value->type = JSON_STRING;
        value->text = read_string(at);
        sound = value->text != NULL;
    } else if (**at == '-' || is_digit(**at)) {
        value->type = JSON_NUMBER;
        sound = read_number(at, &value->number);
    } else {
        value->type = **at == 't' ? JSON_TRUE : **at == 'f' ? JSON_FALSE : JSON_NULL;
        sound = read_word(at, "true") || read_word(at, "false") || read_word(at, "null");
    }
    if (sound)
        return value;
    json_free(value);
    return NULL;
}


json *json_read(const char *text) {
    json *value = read_value(&text, 0);
    skip_space(&text);
    if (value && *text) {
        json_free(value);
        return NULL;
    }
    return value;
}


void json_free(json *value) {
    if (!value)
        return;
    for (json *child = value->first, *next; child; child = next) {
        next = child->next;
        json_free(child);
    }
    free(value->name);
    free(value->text);
    free(value);
}


const json *json_field(const json *object, const char *name) {
    for (const json *child = object->first; child; child = child->next)
        if (child->name && strcmp(child->name, name) == 0)
            return child;
    return NULL;
}


const json *json_item(const json *array, size_t position) {
    const json *child = array->first;
    while (child && position--)
        child = child->next;
    return child;
}
