package com.taobao.diamond.utils;

import org.codehaus.jackson.map.ObjectMapper;

/** In place of Diamond's, which is not published. */
public final class JSONUtils {
    private static final ObjectMapper MAPPER = new ObjectMapper();

    private JSONUtils() {
    }

    public static String serializeObject(Object value) throws Exception {
        return MAPPER.writeValueAsString(value);
    }

    public static Object deserializeObject(String text, Class<?> type) throws Exception {
        return MAPPER.readValue(text, type);
    }
}
